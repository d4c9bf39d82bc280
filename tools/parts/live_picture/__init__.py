"""What draws the live picture for documents."""
