"""Order: NumPy functions of integers. Which sample is at which position, and who gets it."""
