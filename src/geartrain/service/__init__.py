"""The service owns models and predictions; every transport calls it."""
