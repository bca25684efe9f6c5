//! The README's first lines in other languages and for a shell, run as they are printed. Those in Rust are documentation tests.

use std::path::Path;

/// The first block of code in `language`.
///
/// # Errors
/// If there is none.
pub(super) fn block(root: &Path, language: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(root.join("README.md")).map_err(|error| error.to_string())?;
    first_block(&text, language).ok_or_else(|| format!("README.md has no code in {language}"))
}

/// The first command of the program, as it is for those who have installed it.
///
/// # Errors
/// If there is none.
pub(crate) fn shell_line(root: &Path) -> Result<String, String> {
    const FROM_A_CLONE: &str = "$ cargo run --release --";
    let lines = block(root, "text")?;
    let line = lines.lines().find_map(|line| line.strip_prefix(FROM_A_CLONE));
    line.map(|line| format!("lockwright{line}"))
        .ok_or_else(|| format!("README.md does not begin with `{FROM_A_CLONE}`"))
}

fn first_block(text: &str, language: &str) -> Option<String> {
    let start = format!("```{language}\n");
    let (_, after) = text.split_once(&start)?;
    after.split_once("```").map(|(code, _)| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_of_a_language_is_found_and_that_of_another_is_not() {
        let text = "a\n```c\nint x;\n```\n```python\nx = 1\n```\n";
        assert_eq!(first_block(text, "c").as_deref(), Some("int x;\n"));
        assert_eq!(first_block(text, "python").as_deref(), Some("x = 1\n"));
        assert_eq!(first_block(text, "java"), None);
    }
}
