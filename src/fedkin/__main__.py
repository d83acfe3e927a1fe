from fedkin.cli import main

main()
