"""Measures Throng against llama.cpp: the same files, the same threads, alternating runs."""
