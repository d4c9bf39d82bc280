"""Growing a speculation tree: WANSpec's Algorithm 2, best first, ranking and calibration."""
