//! Globs as selectors have them: `*` any run of characters but `/`, `**` any run, `?` one character but `/`.
//! Everything else stands for itself; there are no classes and no escapes.

/// Whether `text` matches `pattern` as a whole.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // Row by row over the pattern: reach[j] says whether the pattern so far can match text[..j]. Linear in both, so
    // that no pattern can make an agent spin.
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    let mut i = 0;
    while i < pattern.len() {
        let star = pattern[i] == '*';
        let across = star && pattern.get(i + 1) == Some(&'*');
        let mut next = vec![false; text.len() + 1];
        for j in 0..=text.len() {
            next[j] = if star {
                reach[j] || (j > 0 && next[j - 1] && (across || text[j - 1] != '/'))
            } else {
                j > 0 && reach[j - 1] && (pattern[i] == text[j - 1] || (pattern[i] == '?' && text[j - 1] != '/'))
            };
        }
        reach = next;
        i += if across { 2 } else { 1 };
    }
    reach[text.len()]
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_components() {
        for (pattern, text, expected) in [
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b/c", false),
            ("/a/**", "/a/b/c", true),
            ("/a/**/c", "/a/b/b/c", true),
            ("node-?", "node-1", true),
            ("node-?", "node-12", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
            ("[x]", "[x]", true),
            ("?", "/", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_cost_no_more_than_their_number() {
        assert!(!matches(&"*a".repeat(200), &"a".repeat(150)));
    }
}
