//! Where an engine keeps its records: arrays that the caller hands over.

use core::marker::PhantomData;
use core::ops::DerefMut;

/// A kind of array. The engines never grow one, so a borrowed slice is enough; a caller with an
/// allocator may hand over boxed slices or vectors.
pub trait Store {
    /// An array of `T`.
    type Array<T: 'static>: DerefMut<Target = [T]>;
}

/// Arrays that are slices of the caller's.
#[derive(Debug)]
pub struct Borrowed<'a>(PhantomData<&'a mut ()>);

impl<'a> Store for Borrowed<'a> {
    type Array<T: 'static> = &'a mut [T];
}
