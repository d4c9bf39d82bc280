"""The attack of arXiv 2411.01076 on our event stream: which of 50 known prompts was asked, from TLS records alone."""
