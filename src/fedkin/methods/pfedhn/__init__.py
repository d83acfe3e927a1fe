from fedkin.methods.pfedhn.method import PFedHN

__all__ = ["PFedHN"]
