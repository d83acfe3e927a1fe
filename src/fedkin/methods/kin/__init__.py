from fedkin.methods.kin.experts import EXPERTS
from fedkin.methods.kin.method import Kin

__all__ = ["EXPERTS", "Kin"]
