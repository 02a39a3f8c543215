"""A trained model in use: predictions for files, and a server for clients."""
