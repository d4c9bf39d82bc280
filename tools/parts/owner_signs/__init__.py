"""What measures the owner's signs."""
