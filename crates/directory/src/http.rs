//! HTTP/1.1 (RFC 9112), as far as etcd's gateway needs it: a request with a body of known length, and its response,
//! whose body has a known length or comes in chunks.

use std::fmt;

/// The longest head of a response, bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest line that begins a chunk, bytes.
const CHUNK_LINE_BYTES_MAX: usize = 256;

/// Why bytes are no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// The head is none of HTTP/1.1.
    NotHttp,
    /// The head has more than 16 KiB.
    LongHead,
    /// The body has no length, or a chunk none.
    NoLength,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HttpError::NotHttp => "the answer is not HTTP/1.1",
            HttpError::LongHead => "the head of the answer has more than 16 KiB",
            HttpError::NoLength => "the answer does not say how long it is",
        })
    }
}

impl std::error::Error for HttpError {}

/// A POST request. `host` is `HOST:PORT`, `token` etcd's for a user that has proved its password.
pub fn request(host: &str, path: &str, token: Option<&str>, body: &[u8]) -> Vec<u8> {
    let authorization = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
    // The gateway passes this on as gRPC's metadata `hasleader`: a member without a leader then refuses, and ends a
    // watch that would stay silent.
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nGrpc-Metadata-hasleader: true\r\n\
         {authorization}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// What was read next of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpResponsePart {
    /// The status code.
    Head(u16),
    /// A piece of the body.
    Body(Vec<u8>),
    /// The response is complete. Bytes behind it, if any, are another's.
    End,
}

/// Reads one response.
#[derive(Debug, Default)]
pub struct ResponseReader {
    received: Vec<u8>,
    state: ResponseParsePosition,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ResponseParsePosition {
    #[default]
    Head,
    /// So many bytes are left.
    Counted(usize),
    ChunkLine,
    /// So many bytes are left, and a line's end.
    Chunk(usize),
    /// The lines behind the last chunk.
    Trailer,
    Done,
}

impl ResponseReader {
    /// Takes bytes that have arrived. Not more than a receive buffer at a time: [`ResponseReader::poll`] takes them
    /// away.
    pub fn handle(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// What was read next; `None` until more has arrived.
    ///
    /// # Errors
    /// [`HttpError`]: the connection cannot be used any more.
    pub fn poll(&mut self) -> Result<Option<HttpResponsePart>, HttpError> {
        loop {
            match self.state {
                ResponseParsePosition::Head => {
                    let Some(end) = find(&self.received, b"\r\n\r\n") else {
                        return if self.received.len() > HEAD_BYTES_MAX { Err(HttpError::LongHead) } else { Ok(None) };
                    };
                    let (status, state) = head_of(&self.received[..end])?;
                    self.received.drain(..end + 4);
                    self.state = state;
                    return Ok(Some(HttpResponsePart::Head(status)));
                }
                ResponseParsePosition::Counted(0) => self.state = ResponseParsePosition::Done,
                ResponseParsePosition::Counted(left) | ResponseParsePosition::Chunk(left) if left > 0 => {
                    let count = left.min(self.received.len());
                    if count == 0 {
                        return Ok(None);
                    }
                    let rest = left - count;
                    self.state = if matches!(self.state, ResponseParsePosition::Chunk(_)) {
                        ResponseParsePosition::Chunk(rest)
                    } else {
                        ResponseParsePosition::Counted(rest)
                    };
                    return Ok(Some(HttpResponsePart::Body(self.received.drain(..count).collect())));
                }
                ResponseParsePosition::Counted(_) | ResponseParsePosition::Chunk(_) => {
                    if self.received.len() < 2 {
                        return Ok(None);
                    }
                    if !self.received.starts_with(b"\r\n") {
                        return Err(HttpError::NoLength);
                    }
                    self.received.drain(..2);
                    self.state = ResponseParsePosition::ChunkLine;
                }
                ResponseParsePosition::ChunkLine => {
                    let Some(line) = self.line()? else { return Ok(None) };
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    // As many digits as 16 MiB - 1 has: no length overflows.
                    let is_length = (1..=6).contains(&digits.len()) && digits.bytes().all(|d| d.is_ascii_hexdigit());
                    let length = usize::from_str_radix(digits, 16).ok().filter(|_| is_length);
                    self.state = match length.ok_or(HttpError::NoLength)? {
                        0 => ResponseParsePosition::Trailer,
                        length => ResponseParsePosition::Chunk(length),
                    };
                }
                ResponseParsePosition::Trailer => match self.line()? {
                    None => return Ok(None),
                    Some(line) if line.is_empty() => self.state = ResponseParsePosition::Done,
                    Some(_) => {}
                },
                ResponseParsePosition::Done => return Ok(Some(HttpResponsePart::End)),
            }
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Option<String>, HttpError> {
        let Some(end) = find(&self.received, b"\r\n") else {
            return if self.received.len() > CHUNK_LINE_BYTES_MAX { Err(HttpError::NoLength) } else { Ok(None) };
        };
        let line = String::from_utf8_lossy(&self.received[..end]).into_owned();
        self.received.drain(..end + 2);
        Ok(Some(line))
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The status code, and how the body comes.
fn head_of(head: &[u8]) -> Result<(u16, ResponseParsePosition), HttpError> {
    let head = std::str::from_utf8(head).map_err(|_| HttpError::NotHttp)?;
    if head.len() > HEAD_BYTES_MAX {
        return Err(HttpError::LongHead);
    }
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let status = status.ok_or(HttpError::NotHttp)?;
    let mut state = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            // It overrides a length (RFC 9112, section 6.3).
            return Ok((status, ResponseParsePosition::ChunkLine));
        }
        if name.eq_ignore_ascii_case("content-length") {
            state = value.parse().ok().map(ResponseParsePosition::Counted);
        }
    }
    Ok((status, state.ok_or(HttpError::NoLength)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of a response that arrives in pieces of this many bytes: status, body, and whether it ended.
    fn read(response: &[u8], step: usize) -> Result<(u16, String, bool), HttpError> {
        let mut reader = ResponseReader::default();
        let (mut status, mut body, mut is_over) = (0, Vec::new(), false);
        for bytes in response.chunks(step) {
            reader.handle(bytes);
            while let Some(piece) = reader.poll()? {
                match piece {
                    HttpResponsePart::Head(read) => status = read,
                    HttpResponsePart::Body(more) => body.extend(more),
                    HttpResponsePart::End => {
                        is_over = true;
                        break;
                    }
                }
            }
        }
        Ok((status, String::from_utf8(body).unwrap(), is_over))
    }

    #[test]
    fn response_is_read_however_its_bytes_arrive() {
        let counted = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let chunked = b"HTTP/1.1 404 Not Found\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX: y\r\n\r\n";
        for step in 1..chunked.len() {
            assert_eq!(read(counted, step), Ok((200, "hello".into(), true)), "{step}");
            assert_eq!(read(chunked, step), Ok((404, "hello".into(), true)), "{step}");
        }
        assert_eq!(read(&chunked[..chunked.len() - 2], 7), Ok((404, "hello".into(), false)));
    }

    #[test]
    fn what_is_no_response_is_refused() {
        for (bytes, why) in [
            (&b"SSH-2.0-OpenSSH\r\n\r\n"[..], HttpError::NotHttp),
            (b"HTTP/1.1 200 OK\r\n\r\n", HttpError::NoLength),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", HttpError::NoLength),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", HttpError::NoLength),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\n", HttpError::NoLength),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n", HttpError::NoLength),
        ] {
            assert_eq!(read(bytes, 4096), Err(why), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(&[b'x'; HEAD_BYTES_MAX + 1], 4096), Err(HttpError::LongHead));
    }

    #[test]
    fn request_says_its_length_and_its_token() {
        let text = String::from_utf8(request("a:2379", "/v3/kv/range", Some("t.1"), b"{}")).unwrap();
        let expected = "POST /v3/kv/range HTTP/1.1\r\nHost: a:2379\r\nContent-Type: application/json\r\n\
            Grpc-Metadata-hasleader: true\r\nAuthorization: t.1\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(text, expected);
    }
}
