// Draws at most once a frame, and rests after what took long, so that the page answers while it draws.

const FAST_MS = 8;
/** Rest after a slow draw, as a multiple of the time it took. */
const REST = 4;

export class Frames {
  constructor(draw) {
    this.draw = draw;
    this.pending = 0;
    this.next = 0;
  }

  request() {
    this.pending ||= requestAnimationFrame(() => this.#frame());
  }

  cancel() {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
  }

  #frame() {
    this.pending = 0;
    const start = performance.now();
    if (start < this.next) {
      this.request();
      return;
    }
    this.draw();
    const took = performance.now() - start;
    this.next = took > FAST_MS ? start + took * (1 + REST) : 0;
  }
}
