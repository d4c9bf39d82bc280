"""WANSpec's measurement study (section 3) on endpoints of one's own choice."""
