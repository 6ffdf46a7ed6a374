//! A file to look at: reads come from the file, writes stay in memory.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

const BLOCK: u64 = 4096;

/// Storage over a file that never changes it.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    file_len: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Blocks that were written, by number.
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The file counts only below this: the storage was cut there once.
    file_valid: u64,
}

impl Overlay {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let file_len = file.metadata()?.len();
        let state = State { len: file_len, blocks: BTreeMap::new(), file_valid: file_len };
        Ok(Overlay { file, file_len, state: Mutex::new(state) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.file_len == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half done in here after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block(&self, state: &State, number: u64) -> io::Result<Vec<u8>> {
        if let Some(block) = state.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = vec![0; 4096];
        let start = number * BLOCK;
        let available = usize::try_from(state.file_valid.saturating_sub(start).min(BLOCK)).unwrap_or(0);
        if let Some(part) = block.get_mut(..available) {
            self.file.read_exact_at(part, start)?;
        }
        Ok(block)
    }

    /// Calls `each` with every block of `offset..offset + len`, the place in it, and the place in the caller's bytes.
    fn blocks(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = usize::try_from(at % BLOCK).unwrap_or(0);
            let part = (4096 - within).min(len - done);
            each(at / BLOCK, within..within + part, done..done + part)?;
            done += part;
        }
        Ok(())
    }
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the storage")
}

impl StorageBackend for Overlay {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.state().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let state = self.state();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        Self::blocks(offset, out.len(), |number, within, place| {
            let block = self.block(&state, number)?;
            if let (Some(to), Some(from)) = (out.get_mut(place), block.get(within)) {
                to.copy_from_slice(from);
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut state = self.state();
        if len < state.len {
            state.file_valid = state.file_valid.min(len);
            state.blocks.split_off(&len.div_ceil(BLOCK));
            let kept = usize::try_from(len % BLOCK).unwrap_or(0);
            if let Some(block) = state.blocks.get_mut(&(len / BLOCK)) {
                block.iter_mut().skip(kept).for_each(|byte| *byte = 0);
            }
        }
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut state = self.state();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        Self::blocks(offset, data.len(), |number, within, place| {
            let mut block = self.block(&state, number)?;
            if let (Some(to), Some(from)) = (block.get_mut(within), data.get(place)) {
                to.copy_from_slice(from);
            }
            state.blocks.insert(number, block);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..16_000, proptest::collection::vec(any::<u8>(), 1..6000)).prop_map(|(at, data)| Step::Write(at, data)),
            1 => (0u64..20_000).prop_map(Step::SetLen),
        ]
    }

    proptest! {
        #[test]
        fn as_a_plain_buffer_and_the_file_stays(steps in proptest::collection::vec(step(), 0..12)) {
            let original: Vec<u8> = (0..10_000u32).map(|i| u8::try_from(i % 251).unwrap() + 1).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&original).unwrap();
            let overlay = Overlay::new(file.try_clone().unwrap()).unwrap();
            let mut model = original.clone();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        let end = usize::try_from(at).unwrap() + data.len();
                        prop_assert_eq!(overlay.write(at, &data).is_ok(), end <= model.len());
                        if end <= model.len() {
                            model[end - data.len()..end].copy_from_slice(&data);
                        }
                    }
                    Step::SetLen(len) => {
                        overlay.set_len(len).unwrap();
                        model.resize(usize::try_from(len).unwrap(), 0);
                    }
                }
            }
            let mut read = vec![0; model.len()];
            overlay.read(0, &mut read).unwrap();
            prop_assert!(read == model);
            let mut kept = vec![0; original.len()];
            file.read_exact_at(&mut kept, 0).unwrap();
            prop_assert!(kept == original);
        }
    }
}
