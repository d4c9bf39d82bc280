"""Places of workers, measured with real models: `adaptive` beside co-located decoding by round trip."""
