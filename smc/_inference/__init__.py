"""Sequential Monte Carlo and the discrete filter: steps, weights, resampling, and the loop."""
