//! Reading and writing from one end of a buffer to the other, each step checked.

use super::{Kind, Malformed, name_is_valid};

#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) len: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    pub(super) fn put(&mut self, more: &[u8]) -> Option<()> {
        let end = self.len.checked_add(more.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(more);
        self.len = end;
        Some(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn entry(&mut self) -> Result<(Kind, &'a [u8]), Malformed> {
        let [kind, len] = self.array()?;
        let kind = Kind::from_u8(kind).ok_or(Malformed::Kind(kind))?;
        let name = self.take(usize::from(len))?;
        if !name_is_valid(name) {
            return Err(Malformed::Path);
        }
        Ok((kind, name))
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Trailing)
        }
    }
}
