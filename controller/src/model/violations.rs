//! What is wrong with an input, field by field.

use std::fmt;

/// Path of a field in its proto form, for instance `intent.spec.nodes.any_of[0]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// A path that begins here.
    pub fn root(name: &str) -> Self {
        FieldPath(name.to_owned())
    }

    /// A field of the message at this path.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        FieldPath(format!("{}.{name}", self.0))
    }

    /// An element of the list at this path.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        FieldPath(format!("{}[{index}]", self.0))
    }

    /// An entry of the map at this path; a long key is cut.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        let shown: String = key.chars().take(80).collect();
        FieldPath(format!("{}[{shown:?}]", self.0))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field.
    pub field: String,
    /// One sentence.
    pub description: String,
}

/// Everything that is wrong with an input, in the order in which it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds one.
    pub fn add(&mut self, at: &FieldPath, description: impl Into<String>) {
        self.0.push(Violation { field: at.to_string(), description: description.into() });
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn as_slice(&self) -> &[Violation] {
        &self.0
    }

    /// Adds a violation unless `value` lies in `range`; both ends count.
    pub fn check_range<T: PartialOrd + fmt::Display>(&mut self, at: &FieldPath, value: T, low: T, high: T) -> bool {
        let inside = value >= low && value <= high;
        if !inside {
            self.add(at, format!("{value} is outside of {low} to {high}"));
        }
        inside
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, violation) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{}: {}", violation.field, violation.description)?;
        }
        Ok(())
    }
}
