//! The commands that a README shows, with the line where each one stands.

use anyhow::{Context, Result, bail};

/// One command as a shell runs it.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Command {
    /// Line of README.md, counted from 1; 0 when it does not have it.
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Command {
    /// One that README.md does not have.
    pub(crate) fn spoken(text: &str) -> Self {
        Self {
            line: 0,
            text: text.to_owned(),
        }
    }
}

/// What the line before was part of.
enum Block {
    Prose,
    Indented,
    Fenced,
}

/// The commands below the heading called `heading`, up to the next heading of any level.
///
/// # Errors
/// When there is no such heading, no command below it, or a block in an unknown language.
pub(crate) fn commands(readme: &str, heading: &str) -> Result<Vec<Command>> {
    let section = section(readme, heading)
        .with_context(|| format!("README.md has no heading '{heading}'"))?;
    let mut found = Vec::new();
    for block in blocks(&section) {
        found.extend(block.commands()?);
    }
    if found.is_empty() {
        bail!("README.md has no command below the heading '{heading}'");
    }
    Ok(found)
}

/// A code block: its language, and its lines with their numbers.
struct CodeBlock {
    language: String,
    lines: Vec<(usize, String)>,
}

impl CodeBlock {
    fn commands(&self) -> Result<Vec<Command>> {
        let Some((first, _)) = self.lines.first() else {
            return Ok(Vec::new());
        };
        match self.language.as_str() {
            "" | "sh" | "console" => Ok(shell(&self.lines)),
            "python" => Ok(vec![Command {
                line: *first,
                text: here_document(&self.lines),
            }]),
            other => bail!(
                "README.md:{first}: no way is known to run a block in '{other}'; move it to \
                 another section"
            ),
        }
    }
}

/// Each line is a command, or, when there are prompts, each line after a prompt.
fn shell(lines: &[(usize, String)]) -> Vec<Command> {
    let prompts = lines.iter().any(|(_, text)| text.starts_with("$ "));
    let mut found: Vec<Command> = Vec::new();
    let mut continues = false;
    for (line, text) in lines {
        let taken = match text.strip_prefix("$ ") {
            Some(command) => command,
            None if prompts && !continues => continue,
            None => text,
        };
        match found.last_mut().filter(|_| continues) {
            Some(command) => command.text += &format!("\n{taken}"),
            None if taken.trim().is_empty() || taken.trim_start().starts_with('#') => continue,
            None => found.push(Command {
                line: *line,
                text: taken.to_owned(),
            }),
        }
        continues = taken.ends_with('\\');
    }
    found
}

/// A Python program as a command of the shell, which may have entered a virtual environment.
fn here_document(lines: &[(usize, String)]) -> String {
    let program: String = lines.iter().map(|(_, text)| format!("{text}\n")).collect();
    format!("python3 - <<'END-OF-PROGRAM'\n{program}END-OF-PROGRAM")
}

/// The lines below `heading`, numbered as in the whole text.
fn section<'a>(readme: &'a str, heading: &str) -> Option<Vec<(usize, &'a str)>> {
    let mut fenced = false;
    let mut taken = None;
    for (at, line) in readme.lines().enumerate() {
        fenced ^= line.starts_with("```");
        if !fenced && line.starts_with('#') {
            if taken.is_some() {
                break;
            }
            let title = line.trim_start_matches('#').trim();
            taken = (title == heading).then(Vec::new);
        } else if let Some(lines) = &mut taken {
            lines.push((at + 1, line));
        }
    }
    taken
}

fn blocks(section: &[(usize, &str)]) -> Vec<CodeBlock> {
    let mut found: Vec<CodeBlock> = Vec::new();
    let mut state = Block::Prose;
    for &(at, line) in section {
        let fence = line.strip_prefix("```");
        let taken = match (&state, fence) {
            (Block::Fenced, Some(_)) => {
                state = Block::Prose;
                continue;
            }
            (Block::Fenced, None) => line,
            (_, Some(language)) => {
                state = Block::Fenced;
                found.push(CodeBlock::new(language.trim()));
                continue;
            }
            (Block::Prose, None) if line.starts_with("    ") => {
                state = Block::Indented;
                found.push(CodeBlock::new(""));
                &line[4..]
            }
            (Block::Indented, None) if line.starts_with("    ") => &line[4..],
            (Block::Indented, None) if line.trim().is_empty() => continue,
            (Block::Prose | Block::Indented, None) => {
                state = Block::Prose;
                continue;
            }
        };
        if let Some(block) = found.last_mut() {
            block.lines.push((at, taken.to_owned()));
        }
    }
    found
}

impl CodeBlock {
    fn new(language: &str) -> Self {
        Self {
            language: language.to_owned(),
            lines: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "\
# A program

## Installing

Do this:

    make one   # takes some minutes
    make two \\
        --long

Or that:

```python
# not a heading
import one
```

### Seen

    $ cat job.py
    print(1)
    $ run job.py
    1

## Rust

```rust
fn main() {}
```

## Words

Only words.
";

    fn texts(heading: &str) -> Vec<(usize, String)> {
        let found = commands(README, heading).unwrap();
        found.into_iter().map(|c| (c.line, c.text)).collect()
    }

    #[test]
    fn indented_lines_and_programs_are_commands() {
        let found = texts("Installing");
        assert_eq!(found[0], (7, "make one   # takes some minutes".into()));
        assert_eq!(found[1], (8, "make two \\\n    --long".into()));
        assert_eq!(found[2].0, 14);
        assert!(found[2].1.starts_with("python3 - <<'END"));
        assert!(found[2].1.contains("\n# not a heading\nimport one\n"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn where_there_is_a_prompt_the_rest_is_output() {
        let found = texts("Seen");
        let want = [(20, "cat job.py"), (22, "run job.py")];
        assert_eq!(found, want.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn what_cannot_be_run_is_an_error() {
        let error = |heading| commands(README, heading).unwrap_err().to_string();
        assert!(error("Missing").contains("no heading 'Missing'"));
        assert!(error("Words").contains("no command"));
        assert!(error("Rust").contains("README.md:28"));
    }
}
