from fedkin.methods.pfedgat.method import PFedGAT

__all__ = ["PFedGAT"]
