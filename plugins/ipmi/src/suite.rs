//! The algorithms of the cipher suites 3 and 17 (IPMI 2.0, 13.28 to 13.32): HMAC for authentication and integrity, AES-128-CBC for confidentiality.

use aes::Aes128;
use cipher::block_padding::NoPadding;
use cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::Sha256;

/// The size of a block of AES, and of its key and initial vector.
pub const BLOCK: usize = 16;
/// The most random bytes that the kernel gives in one call without interruption.
const RANDOM_BYTES_MAX: usize = 256;

/// A cipher suite with all three protections. Suites without one of them are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CipherSuite {
    /// Suite 3: HMAC-SHA1, HMAC-SHA1-96, AES-CBC-128.
    Sha1,
    /// Suite 17: HMAC-SHA256, HMAC-SHA256-128, AES-CBC-128.
    Sha256,
}

impl CipherSuite {
    /// The numbers of its algorithms for authentication, integrity and confidentiality.
    pub const fn algorithms(self) -> [u8; 3] {
        match self {
            Self::Sha1 => [1, 1, 1],
            Self::Sha256 => [3, 4, 1],
        }
    }

    /// The length of a key exchange code in bytes.
    pub const fn code_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The length of an integrity code in bytes, with which each message ends.
    pub const fn integrity_bytes(self) -> usize {
        match self {
            Self::Sha1 => 12,
            Self::Sha256 => 16,
        }
    }

    /// The whole HMAC of these parts.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha1 => mac::<Hmac<Sha1>>(key, parts).map(|mac| mac.finalize().into_bytes().to_vec()),
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).map(|mac| mac.finalize().into_bytes().to_vec()),
        }
        .unwrap_or_default()
    }

    /// Whether `code` is the HMAC of these parts or, if it is shorter, its beginning. Takes the same time for each wrong code.
    pub fn verify(self, key: &[u8], parts: &[&[u8]], code: &[u8]) -> bool {
        // A code without bytes would fit everything.
        code.len() >= self.integrity_bytes()
            && match self {
                Self::Sha1 => mac::<Hmac<Sha1>>(key, parts).is_some_and(|mac| mac.verify_truncated_left(code).is_ok()),
                Self::Sha256 => {
                    mac::<Hmac<Sha256>>(key, parts).is_some_and(|mac| mac.verify_truncated_left(code).is_ok())
                }
            }
    }
}

/// An HMAC takes keys of any length: [`None`] never happens.
fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Option<M> {
    let mut mac = <M as Mac>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(mac)
}

/// The keys of an open session.
#[derive(Clone)]
pub struct SessionKeys {
    pub suite: CipherSuite,
    /// The key K1, for the integrity codes of messages.
    integrity: Vec<u8>,
    /// The first bytes of K2, for AES.
    confidentiality: [u8; BLOCK],
}

impl SessionKeys {
    /// Derives the keys from the session integrity key (13.32). The constants have 20 bytes with both hashes, as BMCs and ipmitool have it.
    pub fn derive(suite: CipherSuite, sik: &[u8]) -> Self {
        let (integrity, second) = (suite.hmac(sik, &[&[1; 20]]), suite.hmac(sik, &[&[2; 20]]));
        let mut confidentiality = [0; BLOCK];
        let length = BLOCK.min(second.len());
        confidentiality[..length].copy_from_slice(&second[..length]);
        Self { suite, integrity, confidentiality }
    }

    /// Appends initial vector and encrypted payload (13.29).
    pub fn put_encrypted(&self, out: &mut Vec<u8>, payload: &[u8]) {
        let vector: [u8; BLOCK] = random();
        let mut plain = payload.to_vec();
        let padding = (BLOCK - (payload.len() + 1) % BLOCK) % BLOCK;
        plain.extend((1..=padding).map(|number| number as u8));
        plain.push(padding as u8);
        let cipher = cbc::Encryptor::<Aes128>::new(&self.confidentiality.into(), &vector.into());
        out.extend_from_slice(&vector);
        out.extend(cipher.encrypt_padded_vec_mut::<NoPadding>(&plain));
    }

    /// Decrypts a payload with its initial vector. `None` if it is not of whole blocks, or has an impossible padding.
    pub fn decrypt(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (vector, rest) = bytes.split_at_checked(BLOCK)?;
        let vector: [u8; BLOCK] = vector.try_into().ok()?;
        let cipher = cbc::Decryptor::<Aes128>::new(&self.confidentiality.into(), &vector.into());
        let mut plain = cipher.decrypt_padded_vec_mut::<NoPadding>(rest).ok()?;
        let padding = usize::from(plain.pop()?);
        // Controllers fill the padding in different ways; the integrity code has been checked before.
        let length = plain.len().checked_sub(padding).filter(|_| padding < BLOCK)?;
        plain.truncate(length);
        Some(plain)
    }

    /// The integrity code of a message.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let mut code = self.suite.hmac(&self.integrity, &[message]);
        code.truncate(self.suite.integrity_bytes());
        code
    }

    /// Whether this is the integrity code of a message.
    pub fn is_signed(&self, message: &[u8], code: &[u8]) -> bool {
        code.len() == self.suite.integrity_bytes() && self.suite.verify(&self.integrity, &[message], code)
    }
}

/// Random bytes of the kernel's generator.
pub fn random<const N: usize>() -> [u8; N] {
    const { assert!(N <= RANDOM_BYTES_MAX) };
    let mut bytes = [0; N];
    loop {
        // SAFETY: the buffer has N bytes and lives as long as the call.
        let given = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
        // Below 256 bytes the call gives all or is interrupted before the generator is ready.
        if usize::try_from(given) == Ok(N) {
            return bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encrypted_is_decrypted() {
        for suite in [CipherSuite::Sha1, CipherSuite::Sha256] {
            let keys = SessionKeys::derive(suite, b"a key of the session");
            for length in 0..40usize {
                let payload: Vec<u8> = (0..length as u8).collect();
                let mut out = Vec::new();
                keys.put_encrypted(&mut out, &payload);
                assert_eq!(out.len() % BLOCK, 0);
                assert_eq!(keys.decrypt(&out), Some(payload));
                assert_eq!(keys.decrypt(&out[..out.len() - 1]), None, "a part of a block");
            }
            let code = keys.sign(b"message");
            assert!(keys.is_signed(b"message", &code) && !keys.is_signed(b"massage", &code));
            assert!(!keys.is_signed(b"message", &[]) && !keys.is_signed(b"message", &code[1..]));
        }
    }

    /// RFC 2202 and RFC 4231, test case 2.
    #[test]
    fn codes_of_the_rfcs() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert_eq!(hex(&CipherSuite::Sha1.hmac(b"Jefe", &parts)), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let code = CipherSuite::Sha256.hmac(b"Jefe", &parts);
        assert_eq!(hex(&code), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert!(CipherSuite::Sha256.verify(b"Jefe", &parts, &code[..16]));
        assert!(!CipherSuite::Sha256.verify(b"Jefe", &parts, &code[..8]), "too short to prove anything");
    }
}
