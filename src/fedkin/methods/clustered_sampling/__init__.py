from fedkin.methods.clustered_sampling.method import ClusteredSampling

__all__ = ["ClusteredSampling"]
