-- A GHC program: an unboxed array, a map, green threads, garbage in two collectors. usage: job MIB +RTS ...
module Main (main) where

import Control.Concurrent
import Control.Monad
import Data.Array.Base (unsafeAt)
import Data.Array.Unboxed
import Data.Bits
import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Word
import System.Environment
import System.Mem
import System.Timeout

mix :: Word64 -> Word64
mix x0 = z `xor` (z `shiftR` 31)
  where
    x = x0 + 0x9e3779b97f4a7c15
    y = (x `xor` (x `shiftR` 30)) * 0xbf58476d1ce4e5b9
    z = (y `xor` (y `shiftR` 27)) * 0x94d049bb133111eb

filled :: Int -> Word64 -> UArray Int Word64
filled n seed = listArray (0, n - 1) [mix (seed + fromIntegral i) | i <- [0 .. n - 1]]

digest :: Int -> UArray Int Word64 -> Word64
digest n a = go 0 1
  where
    go i h
      | i == n = h
      | otherwise = h `seq` go (i + 1) (mix (h `xor` unsafeAt a i))

main :: IO ()
main = do
  mib <- read . head <$> getArgs
  let n = mib * 65536
      a = filled n 0
  putStrLn ("filled " ++ show n ++ " " ++ show (digest n a))
  let m = Map.fromList [(mix i, show i) | i <- [1 .. fromIntegral mib * 1000]]
      total = foldl' (\s v -> s + length v) 0 (Map.elems m)
  putStrLn ("map " ++ show (Map.size m) ++ " " ++ show total)
  boxes <- forM [1 .. 8 :: Word64] $ \k -> do
    box <- newEmptyMVar
    _ <- forkIO $ do
      let sums = [digest s (filled s (k * 1000 + r)) | r <- [1 .. 3], let s = mib * 512]
      putMVar box $! foldl' xor 0 sums
    pure box
  sums <- mapM takeMVar boxes
  putStrLn ("threads " ++ show (foldl' xor 0 sums))
  late <- timeout 20000 (threadDelay 100000000)
  putStrLn ("timeout " ++ show late)
  performMajorGC
  putStrLn ("again " ++ show (digest n a) ++ " " ++ show (Map.foldl' (\s v -> s + length v) 0 m))
