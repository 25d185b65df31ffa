//! Tests of the protocol as a whole.

mod recorded;
