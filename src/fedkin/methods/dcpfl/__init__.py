from fedkin.methods.dcpfl.method import DCPFL

__all__ = ["DCPFL"]
