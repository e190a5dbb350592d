"""Between the values of a model and what is sent: arguments, outputs and files."""
