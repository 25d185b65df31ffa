//! The operating system's side: mapped files that survive truncation, memory that processes share, large
//! buffers, cores and priorities of threads, and the permission for tile registers. Holds `unsafe` for system
//! calls and memory from the system. Does not know arithmetic, models and requests.

pub mod affinity;
mod bus_fault;
pub mod mapped_file;
pub mod memory;
pub mod numa;
pub mod priority;
pub mod shared_memory;
pub mod tile_registers;
