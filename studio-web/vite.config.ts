import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'
import controls from './src/requests.json'

// One classic script: a module script does not load from a `file:` address, and the exported
// site must open from one.
const classicScript: Plugin = {
  name: 'classic-script',
  enforce: 'post',
  transformIndexHtml: {
    order: 'post',
    handler: (html) =>
      html.replace('<script type="module" crossorigin', '<script defer').replace(/ crossorigin/g, ''),
  },
}

// `meshwright studio export` reads which answers a static site holds.
const requests: Plugin = {
  name: 'requests',
  generateBundle() {
    this.emitFile({ type: 'asset', fileName: 'requests.json', source: JSON.stringify(controls) + '\n' })
  },
}

export default defineConfig({
  base: './',
  plugins: [svelte(), classicScript, requests],
  server: { proxy: { '/api': 'http://127.0.0.1:8765' } },
  build: {
    outDir: '../src/meshwright/studio/static',
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    target: 'es2022',
    rolldownOptions: {
      output: {
        format: 'iife',
        codeSplitting: false,
        entryFileNames: 'app.js',
        assetFileNames: 'app[extname]',
      },
    },
  },
})
