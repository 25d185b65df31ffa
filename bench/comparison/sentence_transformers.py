"""sentence-transformers in a small server, on a model of the same shape with random weights of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path

from .places import Places, output, run
from .servers import Server

SERVER = Path(__file__).resolve().parents[1] / "vectors_server.py"


@dataclass(frozen=True)
class SentenceTransformers:
    """Vectors with weights of one type: `float32`, which is its default, or `bfloat16`."""

    places: Places
    threads: int
    dtype: str

    @property
    def name(self):
        return f"sentence-transformers, {self.dtype}"

    def python(self):
        """The Python of an environment of its own, created when absent. It takes about 6 GB."""
        folder = self.places.cache / "sentence-transformers"
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            run([sys.executable, "-m", "venv", folder])
            run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "sentence-transformers"])
            (folder / "complete").touch()
        return python

    def embedding_server(self, model):
        """A server of vectors. Its model has the shape of BGE-M3, whatever is measured."""
        if not model.startswith("bge-m3"):
            raise ValueError(f"sentence-transformers is not prepared for the shape of {model}")
        folder = self.places.models / "bge-m3-transformers"
        command = [self.python(), SERVER, "--folder", folder, "--threads", self.threads, "--dtype", self.dtype]
        log = self.places.results / f"sentence-transformers-{self.dtype}.log"
        return Server(lambda port: [*command, "--port", port], log)

    def prepare(self):
        self.python()

    def version(self):
        """That of the library and of torch."""
        line = "import sentence_transformers as s, torch; print(s.__version__, 'with torch', torch.__version__)"
        return f"sentence-transformers {output([self.python(), '-c', line]).strip()}"
