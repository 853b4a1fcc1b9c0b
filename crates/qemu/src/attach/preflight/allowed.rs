//! What a user allows that is refused otherwise.

/// What the user knows to be safe for this guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    types: Vec<String>,
    managed: bool,
}

impl Allowed {
    /// Allows these types of devices, objects, network backends and block drivers, by the names in
    /// the refusals (`--allow-device`).
    pub fn new(types: impl IntoIterator<Item = String>) -> Self {
        Self {
            types: types.into_iter().collect(),
            managed: false,
        }
    }

    /// Whether to allow a guest that seems to belong to a manager, such as OpenStack
    /// (`--allow-managed`).
    #[must_use]
    pub fn managed(self, managed: bool) -> Self {
        Self { managed, ..self }
    }

    pub(super) fn has_type(&self, kind: &str) -> bool {
        self.types.iter().any(|allowed| allowed == kind)
    }

    pub(crate) fn is_managed(&self) -> bool {
        self.managed
    }
}
