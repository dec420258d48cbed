//! How often each method is called.

use crate::meta::wire::Method;
use std::fmt;
use std::str::FromStr;

/// The weight of each method; as text `stat=50,readdir=20,mknod=15,rmnod=15`, where what is not
/// named has weight 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The weight of [`Method::Stat`].
    pub stat: u32,
    /// The weight of [`Method::ReadDir`].
    pub readdir: u32,
    /// The weight of [`Method::Mknod`].
    pub mknod: u32,
    /// The weight of [`Method::Rmnod`].
    pub rmnod: u32,
}

/// Why a text is no [`Mix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// Something else than `method=weight`.
    #[error("'{part}' is not of the form method=weight, such as stat=50")]
    Form {
        /// The part of the text.
        part: String,
    },
    /// No such method.
    #[error("no method '{name}': there are stat, readdir, mknod, rmnod")]
    Method {
        /// The name given.
        name: String,
    },
    /// A method is named twice.
    #[error("{method} is given twice")]
    Twice {
        /// Which.
        method: Method,
    },
    /// The weight is not a number from 0 to 4294967295.
    #[error(
        "the weight of {method}, '{weight}', is not a number from 0 to {}",
        u32::MAX
    )]
    Weight {
        /// Of which method.
        method: Method,
        /// The weight given.
        weight: String,
    },
    /// No method has a weight above 0.
    #[error("no method has a weight above 0")]
    Empty,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            stat: 50,
            readdir: 20,
            mknod: 15,
            rmnod: 15,
        }
    }
}

impl Mix {
    /// The sum of all weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        Method::ALL
            .iter()
            .map(|method| u64::from(self.weight(*method)))
            .sum()
    }

    /// The weight of one method.
    #[must_use]
    pub const fn weight(&self, method: Method) -> u32 {
        match method {
            Method::Stat => self.stat,
            Method::ReadDir => self.readdir,
            Method::Mknod => self.mknod,
            Method::Rmnod => self.rmnod,
        }
    }

    /// The method that a number below [`Mix::total`] falls on.
    pub(super) fn pick(&self, mut roll: u64) -> Method {
        for method in Method::ALL {
            let weight = u64::from(self.weight(method));
            if roll < weight {
                return method;
            }
            roll -= weight;
        }
        Method::Stat
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        let mut weights = [None; Method::ALL.len()];
        for part in text.split(',') {
            let Some((name, weight)) = part.split_once('=') else {
                return Err(MixError::Form {
                    part: part.trim().to_owned(),
                });
            };
            let (name, weight) = (name.trim(), weight.trim());
            let Some(method) = Method::ALL.into_iter().find(|method| method.name() == name) else {
                return Err(MixError::Method {
                    name: name.to_owned(),
                });
            };
            let Ok(number) = weight.parse::<u32>() else {
                return Err(MixError::Weight {
                    method,
                    weight: weight.to_owned(),
                });
            };
            if weights[method.index()].replace(number).is_some() {
                return Err(MixError::Twice { method });
            }
        }
        let weight = |method: Method| weights[method.index()].unwrap_or(0);
        let mix = Self {
            stat: weight(Method::Stat),
            readdir: weight(Method::ReadDir),
            mknod: weight(Method::Mknod),
            rmnod: weight(Method::Rmnod),
        };
        if mix.total() == 0 {
            Err(MixError::Empty)
        } else {
            Ok(mix)
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stat,
            readdir,
            mknod,
            rmnod,
        } = self;
        write!(
            f,
            "stat={stat},readdir={readdir},mknod={mknod},rmnod={rmnod}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mix: Mix = "stat=1, rmnod = 4,mknod=3".parse().unwrap();
        assert_eq!(
            mix,
            Mix {
                stat: 1,
                readdir: 0,
                mknod: 3,
                rmnod: 4
            }
        );
        assert_eq!(mix.to_string().parse(), Ok(mix));
        assert_eq!(Mix::default().to_string().parse(), Ok(Mix::default()));
    }

    #[test]
    fn every_error_is_told_apart() {
        let error = |text: &str| text.parse::<Mix>().unwrap_err();
        assert!(matches!(error(""), MixError::Form { .. }));
        assert!(matches!(error("stat=1,"), MixError::Form { .. }));
        assert!(matches!(error("open=1"), MixError::Method { .. }));
        assert!(matches!(error("stat=-1"), MixError::Weight { .. }));
        assert!(matches!(error("stat=4294967296"), MixError::Weight { .. }));
        assert_eq!(
            error("stat=1,stat=2"),
            MixError::Twice {
                method: Method::Stat
            }
        );
        assert_eq!(error("stat=0"), MixError::Empty);
    }

    #[test]
    fn every_roll_falls_on_its_method() {
        let mix = Mix {
            stat: 2,
            readdir: 0,
            mknod: 1,
            rmnod: 1,
        };
        let picked: Vec<Method> = (0..mix.total()).map(|roll| mix.pick(roll)).collect();
        assert_eq!(
            picked,
            [Method::Stat, Method::Stat, Method::Mknod, Method::Rmnod]
        );
        let most = Mix {
            stat: u32::MAX,
            readdir: u32::MAX,
            mknod: u32::MAX,
            rmnod: u32::MAX,
        };
        assert_eq!(most.pick(most.total() - 1), Method::Rmnod);
    }
}
