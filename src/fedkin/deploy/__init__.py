"""fedkin over Flower: a ServerApp that drives any method, a ClientApp at each site. Needs `fedkin[flower]`."""
