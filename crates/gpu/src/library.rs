//! A shared library of the driver, and the calls that are taken from it.

use std::ffi::CStr;

/// What both libraries answer every call with: 0 is success.
pub type Status = i32;

/// Declares a struct of a library's calls: those it must have, and those that only newer ones have.
macro_rules! calls {
    ($name:ident, $library:literal,
     needed { $($need:ident = $need_symbol:literal ($($need_arg:ty),*);)* }
     wanted { $($want:ident = $want_symbol:literal ($($want_arg:ty),*);)* }) => {
        struct $name {
            $($need: unsafe extern "C" fn($($need_arg),*) -> $crate::library::Status,)*
            $($want: Option<unsafe extern "C" fn($($want_arg),*) -> $crate::library::Status>,)*
        }

        impl $name {
            /// Loads the library, or says why not. It stays loaded: the driver's libraries keep threads and handlers
            /// of their own, which do not survive being unloaded.
            fn load() -> Result<Self, String> {
                // SAFETY: the driver's own library, by its fixed name, from the system's search path; its initialisers
                // are what every program that uses the driver runs.
                let library = unsafe { libloading::Library::new($library) }
                    .map_err(|_| concat!($library, " is not here: the NVIDIA driver is not installed").to_owned())?;
                let library = std::mem::ManuallyDrop::new(library);
                Ok(Self {
                    $($need: {
                        // SAFETY: the signature is the one in the vendor's header for this name, which never changes:
                        // a changed call gets a new name.
                        *unsafe { library.get(concat!($need_symbol, "\0").as_bytes()) }
                            .map_err(|_| concat!($library, " has no ", $need_symbol, ": the driver is too old").to_owned())?
                    },)*
                    $($want: {
                        // SAFETY: as above.
                        unsafe { library.get(concat!($want_symbol, "\0").as_bytes()) }.ok().map(|call| *call)
                    },)*
                })
            }
        }
    };
}
pub(crate) use calls;

/// Text that the driver wrote into a buffer of ours, up to its zero.
pub fn text(buffer: &[u8]) -> Option<String> {
    let text = CStr::from_bytes_until_nul(buffer).ok()?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}
