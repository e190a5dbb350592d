"""Help for the author of a model: debuggers at a terminal or in an editor, and profiles."""
