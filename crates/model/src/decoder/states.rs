//! Recurrent states of a decoder that leave their slots: copies to other slots, and bytes for stores and
//! other processes. Does not know layers.

use std::ops::Range;

use throng_core::scheduling::batch::SlotCopy;

use super::Decoder;
use crate::backend::{Backend, BackendError, DeviceBlockLayout};

impl<B: Backend> Decoder<B> {
    /// Copies recurrent states between slots, one copy after the other.
    pub fn copy_states(&mut self, backend: &mut B, copies: &[SlotCopy]) {
        if let Some(states) = &mut self.workspace.recurrent.states {
            backend.copy_states(states, copies);
        }
    }

    /// The layout of a recurrent state's bytes; `None` if there are none that can leave the device.
    pub fn state_layout(&self, backend: &B) -> Option<DeviceBlockLayout> {
        backend.state_layout(self.workspace.recurrent.states.as_ref()?)
    }

    /// Appends a range of a state's bytes to `bytes`.
    ///
    /// # Errors
    /// When states cannot leave the device, or it failed.
    pub fn export_state(
        &self,
        backend: &mut B,
        slot: u32,
        range: Range<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        let states = self.workspace.recurrent.states.as_ref();
        states.map_or(Ok(()), |states| backend.export_state(states, slot, range, bytes))
    }

    /// Overwrites a state's bytes from `start` on.
    ///
    /// # Errors
    /// Errors of [`Self::export_state`].
    pub fn import_state(
        &mut self,
        backend: &mut B,
        slot: u32,
        start: usize,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let states = self.workspace.recurrent.states.as_mut();
        states.map_or(Ok(()), |states| backend.import_state(states, slot, start, bytes))
    }
}
