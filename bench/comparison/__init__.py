"""Measures Throng against llama.cpp and ik_llama.cpp: the same files, the same threads, alternating runs."""
