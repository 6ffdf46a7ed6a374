//! A part of the terminal that is drawn again in place.

use std::io::Write as _;

use crate::failure::Failure;

/// Lines where the terminal does not tell its size.
const LINES: usize = 24;

/// What stands on the terminal at present.
#[derive(Debug, Default)]
pub struct Screen {
    drawn: usize,
}

impl Screen {
    /// Draws text over what was drawn before. Lines that are too long are cut off at the edge rather than wrapped, and those
    /// that do not fit are counted: otherwise the next drawing could not find where this one began.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn draw(&mut self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        write!(out, "{}", self.sequence(text, lines_of_terminal()))?;
        out.flush()?;
        Ok(())
    }

    fn sequence(&mut self, text: &str, terminal: usize) -> String {
        let room = terminal.saturating_sub(2).max(1);
        let all = text.lines().count();
        let mut lines: Vec<&str> = text.lines().collect();
        let more = format!("… and {} more lines", all.saturating_sub(room) + 1);
        if all > room {
            lines.truncate(room - 1);
            lines.push(&more);
        }
        // Up to where the last drawing began, clear below, no wrapping while drawing.
        let up = if self.drawn == 0 { String::new() } else { format!("\x1b[{}A\x1b[J", self.drawn) };
        self.drawn = lines.len();
        format!("{up}\x1b[?7l{}\n\x1b[?7h", lines.join("\n"))
    }
}

fn lines_of_terminal() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        _ => LINES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_drawing_begins_where_the_first_did() {
        let mut screen = Screen::default();
        assert_eq!(screen.sequence("a\nb\nc", 24), "\x1b[?7la\nb\nc\n\x1b[?7h");
        assert_eq!(screen.sequence("d", 24), "\x1b[3A\x1b[J\x1b[?7ld\n\x1b[?7h");
        assert_eq!(screen.sequence("e", 24), "\x1b[1A\x1b[J\x1b[?7le\n\x1b[?7h");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut screen = Screen::default();
        let drawn = screen.sequence("1\n2\n3\n4\n5", 5);
        assert!(drawn.contains("1\n2\n… and 3 more lines\n"), "{drawn:?}");
        assert!(screen.sequence("x", 5).starts_with("\x1b[3A"));
        assert!(screen.sequence("1\n2", 0).contains("… and 2 more lines"));
    }
}
