"""Malicious chat templates that an operator uses unknowingly."""

from pathlib import Path

from attack import attack
from server import NotStarted, Server

BOMBS = {
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "doubling": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "repeat": "{{ 'x' * 1000000000 }}",
    "nested repeat": "{{ ('x' * 100000) * 100000 }}",
    "join": "{{ range(90000) | join('x' * 90000) }}",
    "replace": "{{ ('a' * 90000) | replace('a', 'b' * 90000) }}",
    "center": "{{ 'x'.center(2000000000) }}",
    "format": "{{ '%2000000000s' % 'x' }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "lists": "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "tojson": "{% set ns = namespace(l=[1]) %}{% for i in range(3000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    "raise": "{{ raise_exception('x' * 100000) }}",
    "undefined": "{{ a.b.c.d }}",
    "batch": "{{ range(9999) | batch(1000000000, 'x') | list }}",
    "wordwrap": "{{ ('x ' * 90000) | wordwrap(1) | indent(90000) }}",
}


@attack("templates", alone=True, limit_s=120)
def template_bombs(target):
    """Sixteen templates that need endless time or memory: each request gets 400 within seconds, or the start is
    refused."""
    for what, source in BOMBS.items():
        path = Path(target.folder) / "bomb.jinja"
        path.write_text(source)
        try:
            server = Server(
                target.binary,
                f"{target.folder}/server.log",
                ("--chat-template", path),
                address_space=6 << 30,
                startup_limit_s=4,
            )
        except NotStarted as error:
            # Templates are already rendered at the start, where they must end soon as well.
            if "status 1:" not in str(error):
                target.claim(False, f"{what}: the start hangs or ends with a signal ({str(error)[:40]!r})")
            continue
        target.port, target.pid = server.port, server.pid
        answer = target.chat(timeout=6)
        peak = 0
        if server.is_running():
            peak = (
                int(
                    next(
                        line
                        for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
                        if line.startswith("VmHWM")
                    ).split()[1]
                )
                / 1024
            )
        ok = answer.status in (200, 400) and answer.seconds < 5 and peak < 400
        if not ok:
            target.claim(False, f"{what}: {answer.status} in {answer.seconds:.1f} s, peak {peak:.0f} MiB")
        server.kill()
    target.claim(True, f"{len(BOMBS)} templates tried")
