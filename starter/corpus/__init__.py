"""The training text: a deterministic generator of short conversations, every word of it written for this project."""
