from fedkin.methods.pflic.method import PFLIC

__all__ = ["PFLIC"]
