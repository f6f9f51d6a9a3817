"""What makes a few CPU cores count: threads, memory, kernels, and a plan that is measured."""
