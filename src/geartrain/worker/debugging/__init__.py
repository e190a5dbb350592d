"""What a worker does for the person who writes its model: debuggers at a terminal or in an editor, and profiles."""
