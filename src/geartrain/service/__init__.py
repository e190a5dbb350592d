"""The owner of models and predictions; every door calls it."""
