"""Throng beside llama.cpp: the same files, the same threads, runs in turn."""
