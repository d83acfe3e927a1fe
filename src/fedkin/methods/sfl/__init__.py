from fedkin.methods.sfl.method import SFL

__all__ = ["SFL"]
