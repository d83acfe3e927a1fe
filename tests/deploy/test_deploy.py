"""`fedkin deploy`: what it writes can be read by those who are to read it."""

from __future__ import annotations

import stat
import tomllib

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.cli import main
from fedkin.deploy.keys import Keys, keys
from fedkin.deploy.plan import read
from fedkin.deploy.scaffold import Init, init
from fedkin.deploy.site import SiteConfig
from fedkin.methods import METHODS


def deploy(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["deploy", *map(str, words)])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", METHODS)
def test_the_app_of_every_method_says_what_its_defaults_are(name, tmp_path):
    from flwr.common.config import flatten_dict

    init(Init(tmp_path / "new", method=name, rounds=7))
    project = tomllib.loads((tmp_path / "new/app/pyproject.toml").read_text())
    plan = read(flatten_dict(project["tool"]["flwr"]["app"]["config"]))
    assert plan.method == fedkin.method(name)
    assert plan.clients == ("north", "south", "west")
    assert plan.options.rounds == 7


def test_flower_takes_the_app_and_the_connections(tmp_path, monkeypatch):
    from flwr.cli.build import build_fab_from_disk

    init(Init(tmp_path / "new", superlink="10.0.0.7:9000"))
    app = build_fab_from_disk(tmp_path / "new" / "app")
    assert b"server_app.py" in app
    connections = tomllib.loads((tmp_path / "new/flower/config.toml").read_text())["superlink"]
    assert connections["plain"] == {"address": "10.0.0.7:9000", "insecure": True}
    assert connections["tls"]["root-certificates"] == str(tmp_path / "new/keys/ca.crt")


def test_each_site_has_a_file_of_its_own(tmp_path):
    folder = tmp_path / "my new folder"
    assert deploy("init", folder, "--clients", "b", "a") == 0
    sites = [SiteConfig.read(tomllib.loads((folder / f"sites/{name}.toml").read_text())) for name in "ab"]
    assert f"FLWR_HOME='{folder}/flower'" in (folder / "env.sh").read_text()
    assert [(config.name, config.part, config.clients) for config in sites] == [("a", 0, 2), ("b", 1, 2)]
    assert len({config.state for config in sites}) == 2
    readme = (folder / "README.md").read_text()
    assert "--node-config sites/a.toml" in readme
    assert "--database server/state.db" in readme
    assert (folder / "server").is_dir()
    assert "flwr supernode register keys/b.pub tls" in readme


def test_fields_of_the_method_may_follow_its_name(tmp_path):
    assert deploy("init", tmp_path / "app", "--method", "fedcedar,clusters=2") == 0
    text = (tmp_path / "app" / "app" / "pyproject.toml").read_text()
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    assert (config["method"]["name"], config["method"]["clusters"]) == ("fedcedar", 2)
    assert config["run"]["out"].endswith("server/fedcedar")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "full"], "is not empty"),
        (["init", "new", "--method", "fedavgg"], "Did you mean fedavg"),
        (["init", "new", "--data", "digit"], "no data set and no folder of tables 'digit'"),
        (["init", "new", "--clients", "a", "a"], "name each client once"),
        (["init", "new", "--clients", "a/b"], "letters, digits"),
        (["init", "new", "--superlink", "localhost"], "an address and a port"),
        (["init", "new", "--rounds", "0"], "rounds=0"),
        (["init", "new", "--data", "full"], "holds no .npz"),
        (["keys", "full"], "fedkin deploy init"),
        (["keys"], "For example: fedkin deploy keys ."),
        (["undo"], "Known: init, keys, check"),
    ],
)
def test_mistakes_are_explained_and_leave_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert deploy(*words) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "mine.txt"]


def test_without_words_it_says_how_it_is_used(capsys):
    assert deploy("--help") == 0
    assert "fedkin deploy init DIR" in capsys.readouterr().out


def test_keys_fit_each_other_and_are_private(tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    init(Init(tmp_path / "new"))
    keys(Keys(tmp_path / "new", hosts=("localhost", "10.0.0.7")))
    folder, hidden = tmp_path / "new" / "keys", tmp_path / "new-private"
    root, server = (x509.load_pem_x509_certificate((folder / f"{n}.crt").read_bytes()) for n in ("ca", "server"))
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    for name in ("north", "south", "west"):
        private = load_ssh_private_key((hidden / name).read_bytes(), None)
        public = load_ssh_public_key((folder / f"{name}.pub").read_bytes())
        assert private.public_key() == public
    for name in ("ca.key", "server.key", "north"):
        assert stat.S_IMODE((hidden / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(hidden.stat().st_mode) == 0o700
    for path in (tmp_path / "new").rglob("*"):
        assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes(), f"{path} would go to all machines"
    before = (hidden / "north").read_bytes()
    with pytest.raises(ValueError, match="already exists"):
        keys(Keys(tmp_path / "new"))
    assert (hidden / "north").read_bytes() == before


def test_the_apps_bundle_holds_no_keys_and_no_site(tmp_path):
    import io
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    init(Init(tmp_path / "new"))
    keys(Keys(tmp_path / "new"))
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "new" / "app"))).namelist()
    assert "fedkin_app/server_app.py" in names
    assert not [n for n in names if "keys" in n or "sites" in n or n.endswith((".key", ".crt"))]
