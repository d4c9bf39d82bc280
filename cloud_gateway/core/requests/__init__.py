"""A request: what a client asks for, its bounds, and which worker drafts for it."""
