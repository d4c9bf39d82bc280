"""What a pass of the torch target costs."""
