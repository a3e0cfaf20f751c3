"""Pictures: one observed step as a picture or a trace."""
