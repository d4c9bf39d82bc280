"""Controllers: WANSpec's Algorithm 1, the baselines and the adaptive policy."""
