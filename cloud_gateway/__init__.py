"""The cloud side of edgespec: verifies speculation trees with the target model and serves the chat API."""
